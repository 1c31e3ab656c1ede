"""One thread: the tensors are tiny, and several test workers share the cores."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    torch.set_num_threads(1)
