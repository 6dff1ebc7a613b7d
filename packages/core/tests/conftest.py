import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    """With tensors as small as here, more threads only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
