"""A hook of mkdocs: jieba says nothing while the site is built, and keeps its cache in the project.

Its own place is one file in the temporary directory, of whichever user of the machine came first.

Tests: test_site.py.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import jieba

CACHE = Path(__file__).resolve().parents[1] / ".cache"

logging.getLogger("jieba").setLevel(logging.WARNING)
CACHE.mkdir(exist_ok=True)
_tokenizer: Any = jieba.dt
_tokenizer.tmp_dir = str(CACHE)
