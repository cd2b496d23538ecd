"""The one door to llama.cpp. Everything outside this folder sees models, sessions and plain values."""
