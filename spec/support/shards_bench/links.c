/* links.c: every GPU pushes into its partner's memory; what it needs is what its link takes outwards and the partner's inwards. */
#include "base/clock.h"
#include "bench.h"

static double push(const place *p, CUdeviceptr to, CUdeviceptr from)
{
    double began = slc_now_s();
    must(&p->gpu, p->gpu.cuda.MemcpyAsync(to, from, p->options->bytes, p->gpu.stream), "a copy over a link");
    must(&p->gpu, p->gpu.cuda.StreamSynchronize(p->gpu.stream), "a copy over a link");
    return slc_now_s() - began;
}

void links_run(place *p)
{
    const slc_cuda *cuda = &p->gpu.cuda;
    size_t bytes = p->options->bytes;
    int to = partner(p->number, p->count);
    CUdeviceptr from = gpu_allocate(&p->gpu, bytes, "what is sent"), own = gpu_allocate(&p->gpu, bytes, "what is received"), there;
    must(&p->gpu, cuda->IpcGetMemHandle(&p->all->memory[p->number], own), "sharing memory");
    meet(p);
    CUresult mapped = cuda->IpcOpenMemHandle(&there, p->all->memory[to], CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    if (mapped == CUDA_ERROR_PEER_ACCESS_UNSUPPORTED)
        die("GPU %d does not reach the memory of GPU %d", p->number, to);
    must(&p->gpu, mapped, "mapping memory");
    for (int sample = -1; sample < p->options->samples; sample++) {
        gpu_fill(&p->gpu, from, bytes, (uint64_t)(sample + 1) * MOST_GPUS + (uint64_t)p->number);
        gpu_poison(&p->gpu, own, bytes);
        for (int turn = 0; turn <= p->count; turn++) {
            meet(p);
            double seconds = turn == p->count || turn == p->number ? push(p, there, from) : 0;
            if (sample >= 0 && turn == p->number)
                p->all->alone[p->number][sample] = seconds;
            else if (sample >= 0 && turn == p->count)
                p->all->together[p->number][sample] = seconds;
        }
        meet(p);
        for (int source = 0; source < p->count; source++)
            if (partner(source, p->count) == p->number) {
                const piece all = { .width = bytes, .height = 1, .pitch = bytes };
                p->all->wrong += gpu_wrong(&p->gpu, own, &all, 1, (uint64_t)(sample + 1) * MOST_GPUS + (uint64_t)source);
            }
        meet(p);
    }
}
