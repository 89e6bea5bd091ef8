"""An exported model in ONNX Runtime: lists in, slates out, without PyTorch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

from seq2slate.data.features import FeatureTransform
from seq2slate.data.lists import Batch, FloatArray, IntArray
from seq2slate.errors import DataError, UsageError
from seq2slate.saving import read_folder

FEATURES_NOTE, WEIGHTS_NOTE = "seq2slate.features", "seq2slate.weights_sha256"
"""The notes in the file: the fitted columns as JSON, and the checksum of the weights it was made from."""
ITEM_CODES, LIST_CODES = "item_codes.", "list_codes."
"""Prefixes of the inputs for categorical columns, of items and of lists."""


class OnnxRanker:
    """What `seq2slate export` wrote. It is a Ranker, and several threads may use it at once.

    Args:
        model: The file, or its content. A file in the folder of a saved ranker is verified by its manifest.
        threads: Of ONNX Runtime.

    Raises:
        DataError: The file is missing, damaged, or no model that `seq2slate export` wrote.
    """

    def __init__(self, model: str | os.PathLike[str] | bytes, *, threads: int = 1) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        content = model if isinstance(model, bytes) else _read(Path(model))
        try:
            self._session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # the runtime has no class of its own for a file that it cannot read
            raise DataError(
                f"{'the model' if isinstance(model, bytes) else model} cannot be opened: {error}"
            ) from error
        notes = self._session.get_modelmeta().custom_metadata_map
        if FEATURES_NOTE not in notes:
            raise DataError("this ONNX model was not made by `seq2slate export`: it does not say what its columns are")
        self.transform = FeatureTransform.from_json(notes[FEATURES_NOTE], source="the notes of the ONNX model")
        self.weights_sha256 = notes[WEIGHTS_NOTE]

    def rank(self, batch: Batch, k: int | None = None) -> IntArray:
        """Return the best slates (B, K) of a batch."""
        return self.slates(batch, k)[0]

    def slates(self, batch: Batch, k: int | None = None) -> tuple[IntArray, FloatArray]:
        """Return the best slates (B, K) and the log-probability of each choice; -1 and 0 where nothing is placed."""
        if k is not None and k < 1:
            raise UsageError(f"k must be at least 1, got {k}")
        inputs = self.inputs(batch)
        if not batch.n_slots:
            return np.zeros((len(batch), 0), np.int64), np.zeros((len(batch), 0), np.float32)
        return self.run(inputs, batch.n_slots if k is None else k)

    def run(self, inputs: dict[str, npt.NDArray[Any]], k: int) -> tuple[IntArray, FloatArray]:
        """Return the outputs of the graph for given inputs, as `onnx_export` lists them, without `k`."""
        slates, logs = self._session.run(None, inputs | {"k": np.array(k)})
        return slates, logs

    def inputs(self, batch: Batch) -> dict[str, npt.NDArray[Any]]:
        """Return what the graph reads of a batch, but for `k`."""
        lists = batch.lists
        encoded = self.transform.apply(lists)  # also says what is wrong with the columns
        features = batch.pad(self.transform.raw_features(lists))
        inputs: dict[str, npt.NDArray[Any]] = {"features": features, "lengths": lists.lengths}
        for name, codes in encoded.categorical.items():
            inputs[ITEM_CODES + name] = batch.pad(codes.astype(np.int64))
        if self.transform.context.names:
            inputs["context"] = self.transform.raw_context(lists)
        for name, codes in encoded.context_categorical.items():
            inputs[LIST_CODES + name] = codes.astype(np.int64)
        return inputs


def _read(path: Path) -> bytes:
    files = read_folder(path.parent, [path.name]).files
    if path.name not in files:
        raise DataError(f"{path} cannot be opened: there is no such file")
    return files[path.name]
