"""Writes the generated pages: ``python -m tests.docs``."""

from tests.docs import ROOT, builders


def main() -> None:
    for name, build in builders().items():
        pages = build()
        for path, text in pages.items():
            (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
            (ROOT / path).write_text(text, encoding="utf-8")
            print(f"{name}: wrote {path}")
        if not pages:
            print(f"{name}: its sources are not here; nothing written")


if __name__ == "__main__":
    main()
