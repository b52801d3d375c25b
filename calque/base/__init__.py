"""What every layer may use: settings, errors, dtypes, shapes, layouts, devices."""
