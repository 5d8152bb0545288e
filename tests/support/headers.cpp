// Compiled for its precompiled header alone: with MG_PRECOMPILE, every test starts from it.
