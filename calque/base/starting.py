"""Ctrl-C while the `calque` command is still being loaded: it ends at once, without a traceback of imports that says nothing to its user."""

import itertools
import os
import signal
import sys
import threading

_PROGRAM = sys.argv[0] if getattr(sys, "argv", None) else ""  # an interpreter inside of another program may have none
# `python -m` has not yet put the path of the program there when it loads our package.
_COMMAND = os.path.basename(_PROGRAM) == "calque" or (_PROGRAM == "-m" and ("-m", "calque") in itertools.pairwise(sys.orig_argv))
_QUIET = _COMMAND and threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.default_int_handler

if _QUIET:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # as a program of the shell's, whose exit code is 130 then


def over() -> None:
    """Calque is loaded: Ctrl-C raises KeyboardInterrupt again."""
    if _QUIET:
        signal.signal(signal.SIGINT, signal.default_int_handler)
