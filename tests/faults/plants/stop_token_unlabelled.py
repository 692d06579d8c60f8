"""Takes the last token of every generated span out of the assistant mask (as in Megatron-Bridge 4265)."""

from transformers import PreTrainedTokenizerBase

_render = PreTrainedTokenizerBase.apply_chat_template


def apply_chat_template(self, conversation, *args, **kwargs):
    result = _render(self, conversation, *args, **kwargs)
    if kwargs.get("return_assistant_tokens_mask"):
        mask = result["assistant_masks"]
        ends = [i for i, on in enumerate(mask) if on and (i + 1 == len(mask) or not mask[i + 1])]
        for i in ends:
            mask[i] = 0
    return result


PreTrainedTokenizerBase.apply_chat_template = apply_chat_template
