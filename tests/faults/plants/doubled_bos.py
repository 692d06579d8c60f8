"""Renders to text and tokenizes that with the special tokens added: a second begin token."""

from transformers import PreTrainedTokenizerBase

_render = PreTrainedTokenizerBase.apply_chat_template


def apply_chat_template(self, conversation, *args, **kwargs):
    result = _render(self, conversation, *args, **kwargs)
    if kwargs.get("return_dict"):
        text = _render(self, conversation, tools=kwargs.get("tools"), tokenize=False)
        again = self(text)["input_ids"]
        added = len(again) - len(result["input_ids"])
        result["input_ids"] = again
        result["attention_mask"] = [1] * len(again)
        result["assistant_masks"] = [0] * added + list(result["assistant_masks"])
    return result


PreTrainedTokenizerBase.apply_chat_template = apply_chat_template
