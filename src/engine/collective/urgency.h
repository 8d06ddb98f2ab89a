// For the few threads that others wait for: signs of life, and the end of a process that lost its group.
// Nothing here is certain to work; a process may lack the right, and then goes on as it was.
#pragma once

namespace spark::engine {

// The calling thread goes before ordinary ones: real-time scheduling, else a lower nice value. Threads that
// it starts are as any other. True with real-time scheduling.
bool hurry_this_thread();
// All threads of this process, which is about to end.
bool hurry_all_threads();

// The calling thread will not wait for pages: the program's code and a part of its own stack stay in memory
// however short that gets, as far as RLIMIT_MEMLOCK allows.
void keep_resident();

// How long the calling thread has been ready to run but had no processor, since it began; 0 where the kernel
// does not tell.
double waited_for_processor_s();

}  // namespace spark::engine
