#pragma once

// MG_ADDRESS_SANITIZER and MG_THREAD_SANITIZER: 1 in a build with that sanitizer, otherwise 0. GCC
// says so by macros, clang by features.
#if defined(__has_feature)
#define MG_ADDRESS_SANITIZER __has_feature(address_sanitizer)
#define MG_THREAD_SANITIZER __has_feature(thread_sanitizer)
#else
#if defined(__SANITIZE_ADDRESS__)
#define MG_ADDRESS_SANITIZER 1
#else
#define MG_ADDRESS_SANITIZER 0
#endif
#if defined(__SANITIZE_THREAD__)
#define MG_THREAD_SANITIZER 1
#else
#define MG_THREAD_SANITIZER 0
#endif
#endif
