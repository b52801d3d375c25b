"""Function transforms: `vmap`, forward-mode differentiation, and what is made of them. See docs/decisions/0063-function-transforms.md."""
