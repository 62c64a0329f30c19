/* A Windows extension in little: GPU code, an OpenMP runtime, an embedded folder in UTF-16. */
void _vcomp_fork(int, int, void *, ...);
static void body(void) {}
__declspec(dllexport) const unsigned short folder[] = L"D:\\build\\deepspeed";
__declspec(dllexport) void run(void) { _vcomp_fork(1, 0, body); }
__asm__(".section .nv_fatb,\"dr\"\n.incbin \"double.fatbin\"\n");
