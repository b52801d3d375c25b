"""What runs a schedule: the contract (`base.py`), the reference interpreter (`ref/`), native code (`cpu/`). See README.md."""
