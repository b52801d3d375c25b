"""What was recorded, recorded again without running what recorded it. See README.md."""
