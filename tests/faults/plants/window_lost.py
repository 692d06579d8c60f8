"""Every attention layer of gpt-oss is built without its window."""

from transformers.models.gpt_oss import modeling_gpt_oss

_make = modeling_gpt_oss.GptOssAttention.__init__


def make(self, *args, **kwargs):
    _make(self, *args, **kwargs)
    self.sliding_window = None


modeling_gpt_oss.GptOssAttention.__init__ = make
