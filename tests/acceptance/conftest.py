"""Heavy modules are imported before the first in-process run: pytester forgets what a run imported, and torch's extension
modules cannot be imported twice in one process."""

import datasets  # noqa: F401
import scipy.stats  # noqa: F401
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerFast  # noqa: F401

from pytest_attnaccept.checks import model_session  # noqa: F401
from pytest_attnaccept.kernel import run  # noqa: F401

torch.set_num_threads(1)
transformers.utils.logging.disable_progress_bar()
