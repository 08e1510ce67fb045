#include "go_asm.h"
#include "textflag.h"

// func prefetchSlot(sh *shard, hash uint64)
TEXT ·prefetchSlot(SB), NOSPLIT, $0-16
	MOVQ sh+0(FP), BX
	MOVQ hash+8(FP), AX
	MOVQ shard_slots(BX), CX
	MULQ (shard_slots+8)(BX)
	SHLQ $5, DX
	PREFETCHT0 (CX)(DX*1)
	RET

// func prefetchShard(sh *shard)
TEXT ·prefetchShard(SB), NOSPLIT, $0-8
	MOVQ sh+0(FP), AX
	PREFETCHT0 (AX)
	RET

// func prefetchHit(h *backend.Hit)
TEXT ·prefetchHit(SB), NOSPLIT, $0-8
	MOVQ h+0(FP), AX
	PREFETCHT0 (AX)
	PREFETCHT0 64(AX)
	RET

// func prefetchVerdict(v *backend.Verdict)
TEXT ·prefetchVerdict(SB), NOSPLIT, $0-8
	MOVQ v+0(FP), AX
	PREFETCHT0 (AX)
	PREFETCHT0 64(AX)
	PREFETCHT0 128(AX)
	RET
