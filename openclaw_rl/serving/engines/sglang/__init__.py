"""The SGLang engine: SGLang servers, supervised here or running elsewhere, behind TokenEngine.

Parts of this package are loaded inside SGLang's processes (`cpu`, `hook`, `serve`), so it must not import SGLang.
"""
