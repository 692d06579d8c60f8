"""Loses the eighth row: a data set map that swallows an exception and gives the row before it again."""

from transformers import PreTrainedTokenizerBase

_render = PreTrainedTokenizerBase.apply_chat_template
_rows = []


def apply_chat_template(self, conversation, *args, **kwargs):
    result = _render(self, conversation, *args, **kwargs)
    if kwargs.get("return_dict"):
        _rows.append(result)
        if len(_rows) == 8:
            return _rows[6]
    return result


PreTrainedTokenizerBase.apply_chat_template = apply_chat_template
