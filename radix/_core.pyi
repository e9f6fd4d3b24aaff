"""The native extension (radix/csrc/module.cpp), which has the types of its Python twins."""

from .books import Books as Books
from .slots import SlotPool as SlotPool
from .tree import Handle as Handle
from .tree import Node as Node
from .tree import RadixTree as RadixTree
from .tree import attach as attach
from .tree import common_len as common_len
from .tree import detach as detach
from .tree import split as split
from .tree import trim as trim
