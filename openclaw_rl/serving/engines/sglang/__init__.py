"""The SGLang engine: SGLang servers, started and watched here or running elsewhere, behind TokenEngine.

This package is also loaded inside SGLang's own processes (`cpu`, `hook`, `serve`): what is imported here must not
import SGLang.
"""
