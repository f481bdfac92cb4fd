"""Builds the extension for the stable ABI: one wheel serves Python 3.11 and every later one."""

from __future__ import annotations

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "sparrowmq_speedups",
            ["sparrowmq_speedups.c"],
            define_macros=[("Py_LIMITED_API", "0x030B0000")],
            py_limited_api=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
