"""Profiles of a run, with PyTorch's names: what took time and memory, as tables, as a timeline for Perfetto, and as a page of HTML.

>>> import calque
>>> x = calque.ones(100, 100)
>>> with calque.profiler.profile() as p:
...     with calque.profiler.record_function("product"):
...         total = (x @ x).sum().item()
>>> [a.key for a in p.key_averages() if a.kind == "range"]
['product']
"""

from calque.observe.events import Event
from calque.profiler.averages import Average, Averages, Lines
from calque.profiler.costs import Row
from calque.profiler.peak import Held, Peak
from calque.profiler.profile import (
    ProfilerAction,
    ProfilerActivity,
    profile,
    schedule,
    supported_activities,
    tensorboard_trace_handler,
)
from calque.profiler.ranges import record_function

__all__ = [
    "Average", "Averages", "Event", "Held", "Lines", "Peak", "ProfilerAction", "ProfilerActivity", "Row", "profile", "record_function", "schedule",
    "supported_activities", "tensorboard_trace_handler",
]  # fmt: skip
