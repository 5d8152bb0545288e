// Compiled for its precompiled header alone (cmake/precompiled.cmake).
