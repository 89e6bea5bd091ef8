"""seq2slate: re-rank whole slates.

The public names stand in `__init__.pyi`, each with its module, which is imported when the name is first used.
"""

import lazy_loader

__version__ = "0.2.0"
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
