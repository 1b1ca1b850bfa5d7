"""The sample class that packed sets are loaded as, with the trainer's field names."""

from dataclasses import dataclass
from typing import Any, List, Optional

from megatron.energon.flavors.base_dataset import Sample


@dataclass
class PackedCaptioningSample(Sample):
    """One packed sample; every list has one entry a sub-sample."""

    images: List[Any]
    prompts: Optional[List[Any]]
    captions: List[Any]
    patch_positions: Optional[List[Any]] = None
    fps: Optional[List[Any]] = None
    timestamp_decimal: Optional[List[Any]] = None
