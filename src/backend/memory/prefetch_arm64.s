#include "go_asm.h"
#include "textflag.h"

// func prefetchSlot(sh *shard, hash uint64)
TEXT ·prefetchSlot(SB), NOSPLIT, $0-16
	MOVD  sh+0(FP), R0
	MOVD  hash+8(FP), R1
	MOVD  shard_slots(R0), R2
	MOVD  (shard_slots+8)(R0), R3
	UMULH R1, R3, R3
	ADD   R3<<5, R2, R2
	PRFM  (R2), PLDL1KEEP
	RET

// func prefetchShard(sh *shard)
TEXT ·prefetchShard(SB), NOSPLIT, $0-8
	MOVD sh+0(FP), R0
	PRFM (R0), PLDL1KEEP
	RET

// func prefetchHit(h *backend.Hit)
TEXT ·prefetchHit(SB), NOSPLIT, $0-8
	MOVD h+0(FP), R0
	PRFM (R0), PLDL1KEEP
	PRFM 64(R0), PLDL1KEEP
	RET

// func prefetchVerdict(v *backend.Verdict)
TEXT ·prefetchVerdict(SB), NOSPLIT, $0-8
	MOVD v+0(FP), R0
	PRFM (R0), PLDL1KEEP
	PRFM 64(R0), PLDL1KEEP
	PRFM 128(R0), PLDL1KEEP
	RET
