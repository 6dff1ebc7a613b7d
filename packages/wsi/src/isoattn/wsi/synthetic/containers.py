"""Pyramids written as files that OpenSlide reads: tiled TIFF, Aperio SVS, DICOM.

Tiles are encoded by Pillow and handed over finished, so no codec package is needed.

Shape suffixes: H, W pixels.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tifffile
from numpy.typing import NDArray
from PIL import Image
from pydicom.dataset import Dataset, FileDataset, FileMetaDataset
from pydicom.encaps import encapsulate
from pydicom.uid import (
    UID,
    JPEGBaseline8Bit,
    VLWholeSlideMicroscopyImageStorage,
    generate_uid,
)

Container = Literal["tiff", "svs", "dicom"]
Pixels = NDArray[np.uint8]

TILE = 256
NOMINAL = 10.0
"""Objective power is 10 / mpp, as scanners have it: 20 at 0.5."""


def pyramid(pixels_HW3: Pixels, downsamples: Sequence[int] = (1, 2, 4)) -> list[Pixels]:
    """Levels of a picture, each a mean over squares of level 0.

    Args:
        pixels_HW3: uint8 RGB.
        downsamples: ascending from 1.

    Raises:
        ValueError: other downsamples, or a level without a pixel.
    """
    height, width = pixels_HW3.shape[:2]
    steps = list(downsamples)
    if not steps or steps[0] != 1 or steps != sorted(set(steps)) or steps[-1] > min(height, width):
        raise ValueError(
            f"Downsamples ascend from 1 and stay within the picture of {width} x {height} px, got "
            f"{steps}"
        )
    image = Image.fromarray(pixels_HW3)
    return [pixels_HW3] + [np.asarray(image.reduce(step)) for step in steps[1:]]


def write_slide(
    path: Path,
    levels: Sequence[Pixels],
    *,
    container: Container = "tiff",
    mpp: float | None = 0.5,
    quality: int = 85,
    patient: str = "",
) -> Path:
    """Write a pyramid.

    Args:
        path: of the file; for DICOM of the folder that gets one file a level.
        levels: uint8 RGB, from fine to coarse.
        container: format.
        mpp: of level 0; ``None``: the file does not say (TIFF alone).
        quality: of JPEG.
        patient: identifier, which DICOM stores.

    Returns:
        the file to open.

    Raises:
        ValueError: no mpp in a format that needs one.
    """
    if mpp is None and container != "tiff":
        raise ValueError(f"A slide without mpp can be written as tiff alone, not as {container}")
    if container == "dicom":
        assert mpp is not None
        return _write_dicom(path, levels, mpp, quality, patient)
    path.parent.mkdir(parents=True, exist_ok=True)
    aperio = container == "svs"
    with tifffile.TiffWriter(path) as file:
        for i, level in enumerate(levels):
            factor = levels[0].shape[1] / level.shape[1]
            stored = None if mpp is None or aperio else 10_000 / (mpp * factor)
            file.write(
                _encoded(level, quality),
                shape=level.shape,
                dtype=np.uint8,
                tile=(TILE, TILE),
                photometric="ycbcr",
                subsampling=(2, 2),
                compression="jpeg",
                subfiletype=0 if i == 0 or aperio else 1,
                resolution=None if stored is None else (stored, stored),
                resolutionunit="NONE" if stored is None else "CENTIMETER",
                description=_aperio(levels[0], level, mpp) if aperio else None,
                metadata=None,
                software=False,
            )
    return path


def _aperio(first: Pixels, level: Pixels, mpp: float | None) -> str:
    """The description by which Aperio files are told, and which holds mpp and power."""
    assert mpp is not None
    size = f"{first.shape[1]}x{first.shape[0]}"
    reduced = "" if level is first else f" -> {level.shape[1]}x{level.shape[0]}"
    power = round(NOMINAL / mpp)
    return (
        f"Aperio Image Library (isoattn synthetic)\r\n{size} ({TILE}x{TILE}) JPEG/RGB{reduced}"
        f"|AppMag = {power}|MPP = {mpp:.6g}"
    )


def _tiles(level: Pixels) -> Iterator[Pixels]:
    """Row by row; what reaches over the edge is white."""
    height, width = level.shape[:2]
    for top in range(0, height, TILE):
        for left in range(0, width, TILE):
            part = level[top : top + TILE, left : left + TILE]
            if part.shape[:2] == (TILE, TILE):
                yield part
                continue
            full = np.full((TILE, TILE, 3), 255, dtype=np.uint8)
            full[: part.shape[0], : part.shape[1]] = part
            yield full


def _encoded(level: Pixels, quality: int) -> Iterator[bytes]:
    """JPEG, YCbCr 4:2:0."""
    for tile in _tiles(level):
        stream = io.BytesIO()
        Image.fromarray(tile).save(stream, "JPEG", quality=quality, subsampling="4:2:0")
        yield stream.getvalue()


def _write_dicom(
    folder: Path, levels: Sequence[Pixels], mpp: float, quality: int, patient: str
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    # From names and pixels, so that the same slide has the same identifiers.
    source = [folder.name, patient, str(mpp), str(int(levels[0].sum()))]
    uids = {k: generate_uid(entropy_srcs=[*source, k]) for k in ("study", "series", "frame")}
    for i, level in enumerate(levels):
        factor = levels[0].shape[1] / level.shape[1]
        frames = list(_encoded(level, quality))
        uid = generate_uid(entropy_srcs=[*source, f"level {i}"])
        file = FileDataset(str(folder / f"{i}.dcm"), {}, file_meta=_meta(uid), preamble=b"\0" * 128)
        _describe(file, uid, uids, patient, i)
        _describe_pixels(file, level, len(frames), mpp * factor / 1000, mpp)
        file.PixelData = encapsulate(frames)
        file["PixelData"].is_undefined_length = True
        file.save_as(folder / f"{i}.dcm", enforce_file_format=True)
    return folder / "0.dcm"


def _meta(uid: UID) -> FileMetaDataset:
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID = VLWholeSlideMicroscopyImageStorage
    meta.MediaStorageSOPInstanceUID = uid
    meta.TransferSyntaxUID = JPEGBaseline8Bit
    return meta


def _describe(file: Dataset, uid: UID, uids: Mapping[str, str], patient: str, level: int) -> None:
    """Who and what."""
    file.SOPClassUID = VLWholeSlideMicroscopyImageStorage
    file.SOPInstanceUID = uid
    file.StudyInstanceUID = uids["study"]
    file.SeriesInstanceUID = uids["series"]
    file.FrameOfReferenceUID = uids["frame"]
    file.Modality = "SM"
    file.PatientID = patient
    file.PatientName = "synthetic"
    file.Manufacturer = "isoattn synthetic"
    file.InstanceNumber = level + 1
    file.ImageType = ["DERIVED", "PRIMARY", "VOLUME", "NONE" if level == 0 else "RESAMPLED"]
    file.LossyImageCompression = "01"


def _describe_pixels(file: Dataset, level: Pixels, frames: int, spacing: float, mpp: float) -> None:
    """Sizes and layout; ``spacing`` in millimetres."""
    height, width = level.shape[:2]
    file.Rows = file.Columns = TILE
    file.TotalPixelMatrixRows, file.TotalPixelMatrixColumns = height, width
    file.NumberOfFrames = frames
    file.SamplesPerPixel = 3
    file.PhotometricInterpretation = "YBR_FULL_422"
    file.PlanarConfiguration = 0
    file.BitsAllocated = file.BitsStored = 8
    file.HighBit, file.PixelRepresentation = 7, 0
    file.DimensionOrganizationType = "TILED_FULL"
    file.ImagedVolumeWidth, file.ImagedVolumeHeight = width * spacing, height * spacing
    measures = _item(PixelSpacing=[spacing, spacing], SliceThickness=0.001)
    file.SharedFunctionalGroupsSequence = [_item(PixelMeasuresSequence=[measures])]
    optics = _item(OpticalPathIdentifier="1", ObjectiveLensPower=NOMINAL / mpp)
    file.OpticalPathSequence = [optics]
    file.TotalPixelMatrixOriginSequence = [
        _item(XOffsetInSlideCoordinateSystem=0.0, YOffsetInSlideCoordinateSystem=0.0)
    ]


def _item(**values: Any) -> Dataset:
    item = Dataset()
    for keyword, value in values.items():
        setattr(item, keyword, value)
    return item
