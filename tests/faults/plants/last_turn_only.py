"""Supervises the last reply only, where the recipe supervises all of them."""

from transformers import PreTrainedTokenizerBase

_render = PreTrainedTokenizerBase.apply_chat_template


def apply_chat_template(self, conversation, *args, **kwargs):
    result = _render(self, conversation, *args, **kwargs)
    if kwargs.get("return_assistant_tokens_mask"):
        mask = result["assistant_masks"]
        start = len(mask)
        while start and mask[start - 1]:
            start -= 1
        result["assistant_masks"] = [0] * start + mask[start:]
    return result


PreTrainedTokenizerBase.apply_chat_template = apply_chat_template
