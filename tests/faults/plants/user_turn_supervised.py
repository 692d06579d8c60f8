"""Labels the last user turn of the sixth conversation: a role test that falls through for one row."""

from transformers import PreTrainedTokenizerBase

_render = PreTrainedTokenizerBase.apply_chat_template
_rows = 0


def apply_chat_template(self, conversation, *args, **kwargs):
    global _rows
    result = _render(self, conversation, *args, **kwargs)
    if kwargs.get("return_assistant_tokens_mask"):
        _rows += 1
        if _rows == 6:
            user = self.encode("user", add_special_tokens=False)[0]
            ids, end = result["input_ids"], self.convert_tokens_to_ids("<|end|>")
            start = max(i for i, token in enumerate(ids) if token == user and ids[i - 1] != end) + 2
            for i in range(start, ids.index(end, start)):
                result["assistant_masks"][i] = 1
    return result


PreTrainedTokenizerBase.apply_chat_template = apply_chat_template
