"""The programs that can run a network: PyTorch, C kernels, C for a single list, and ONNX Runtime; see `backend`."""
