// A library of --train-step as an older program's headers would make it.
extern "C" const char* megatron_train_step_interface() { return "headers 0 for CPU"; }
