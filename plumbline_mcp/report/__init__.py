"""The report: stored verdicts as one self-contained HTML page and one Markdown page."""

from plumbline_mcp.report.writing import ReportFiles, write_report

__all__ = ["ReportFiles", "write_report"]
