"""A hook of mkdocs: jieba says nothing while the site is built.

Tests: test_site.py.
"""

from __future__ import annotations

import logging

logging.getLogger("jieba").setLevel(logging.WARNING)
