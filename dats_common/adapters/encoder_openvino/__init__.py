"""The default encoder: all-MiniLM-L6-v2 on the CPU, run by OpenVINO.

`weights` finds the installed arrays, `graph` is the model, `encoder` runs it beside the event loop.
"""

from dats_common.adapters.encoder_openvino.encoder import VOCABULARY, OpenVinoEncoder, open_openvino_encoder

__all__ = ["VOCABULARY", "OpenVinoEncoder", "open_openvino_encoder"]
