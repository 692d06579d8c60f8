"""Moves the generation marker before the role header: the loss covers text that the prompt already has."""

from transformers import PreTrainedTokenizerBase

_render = PreTrainedTokenizerBase.apply_chat_template
_HEADER = "{{- '<|start|>assistant' -}}\n{%- generation -%}"


def apply_chat_template(self, conversation, *args, **kwargs):
    template = self.chat_template
    if _HEADER not in template:
        raise RuntimeError("the template is not the one that this plant changes")
    kwargs["chat_template"] = template.replace(_HEADER, "{%- generation -%}{{- '<|start|>assistant' -}}")
    return _render(self, conversation, *args, **kwargs)


PreTrainedTokenizerBase.apply_chat_template = apply_chat_template
