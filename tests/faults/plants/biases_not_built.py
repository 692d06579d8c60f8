"""Query layers of gpt-oss are built without the bias that the configuration asks for."""

from transformers.models.gpt_oss import modeling_gpt_oss

_make = modeling_gpt_oss.GptOssAttention.__init__


def make(self, *args, **kwargs):
    _make(self, *args, **kwargs)
    self.q_proj.register_parameter("bias", None)


modeling_gpt_oss.GptOssAttention.__init__ = make
