//go:build nvml && cgo

package main

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

// The driver's own library, without CUDA's headers: what is on any host with a card.
enum { OUT_OF_MEMORY = 2, NO_DRIVER = -1, CARDS = 64, BLOCKS = 256 };
static int (*init)(unsigned), (*get)(int *, int), (*retain)(void **, int), (*current)(void *), (*room)(size_t *, size_t *);
static int (*take)(uint64_t *, size_t), (*give)(uint64_t), (*load)(void **, const void *), (*find)(void **, void *, const char *);
static int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **), (*finish)(void);

static struct { void *context; uint64_t block[BLOCKS]; int blocks; size_t bytes; } cards[CARDS];

static int open_driver(void) {
	if (init) return 0;
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
	if (!lib) return NO_DRIVER;
	struct { void *into; const char *name; } all[] = {
		{&get, "cuDeviceGet"}, {&retain, "cuDevicePrimaryCtxRetain"}, {&current, "cuCtxSetCurrent"}, {&room, "cuMemGetInfo_v2"},
		{&take, "cuMemAlloc_v2"}, {&give, "cuMemFree_v2"}, {&load, "cuModuleLoadData"}, {&find, "cuModuleGetFunction"},
		{&launch, "cuLaunchKernel"}, {&finish, "cuCtxSynchronize"}, {&init, "cuInit"},
	};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		if (!(*(void **)all[i].into = dlsym(lib, all[i].name))) { init = NULL; return NO_DRIVER; }
	return init(0);
}

static int on_card(int index) {
	int err, device;
	if (index < 0 || index >= CARDS) return NO_DRIVER;
	if ((err = open_driver())) return err;
	if (!cards[index].context && ((err = get(&device, index)) || (err = retain(&cards[index].context, device)))) return err;
	return current(cards[index].context);
}

static int card_room(int index, size_t *bytes) {
	size_t total;
	int err = on_card(index);
	return err ? err : room(bytes, &total);
}

// card_hold holds so many bytes of the card, beside the context.
static int card_hold(int index, size_t bytes) {
	int err = on_card(index);
	if (err) return err;
	if (bytes < cards[index].bytes || cards[index].blocks == BLOCKS) {
		while (cards[index].blocks > 0)
			if ((err = give(cards[index].block[--cards[index].blocks]))) return err;
		cards[index].bytes = 0;
	}
	if (bytes == cards[index].bytes) return 0;
	if ((err = take(&cards[index].block[cards[index].blocks], bytes - cards[index].bytes))) return err;
	cards[index].blocks++;
	cards[index].bytes = bytes;
	return 0;
}

static int card_run(int index, const char *code, const char *name, uint64_t argument) {
	void *module, *function, *arguments[] = {&argument};
	int err = on_card(index);
	if (err || (err = load(&module, code)) || (err = find(&function, module, name)) ||
	    (err = launch(function, 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL))) return err;
	return finish();
}
*/
import "C"

import (
	"fmt"
	"time"
	"unsafe"
)

// code is a kernel that keeps a card busy for so many nanoseconds, and one that writes to an address that it has not.
const code = `.version 6.5
.target sm_75
.address_size 64
.visible .entry busy(.param .u64 ns)
{
	.reg .u64 %t<2>;
	.reg .pred %p;
	mov.u64 %t1, %globaltimer;
	ld.param.u64 %t0, [ns];
	add.u64 %t0, %t0, %t1;
again:
	mov.u64 %t1, %globaltimer;
	setp.lt.u64 %p, %t1, %t0;
	@%p bra again;
	ret;
}
.visible .entry fault(.param .u64 to)
{
	.reg .u64 %t;
	ld.param.u64 %t, [to];
	st.global.u64 [%t], %t;
	ret;
}
`

// card is a real GPU, by CUDA's index. One caller at a time.
type card uint32

// room is how much of it is free, in MiB, its context included.
func (c card) room() (uint, error) {
	var bytes C.size_t
	err := c.failed(C.card_room(C.int(c), &bytes))
	return uint(bytes >> 20), err
}

// hold holds exactly so many MiB beside the context that CUDA makes, whatever it held before.
func (c card) hold(mib uint) error { return c.failed(C.card_hold(C.int(c), C.size_t(mib)<<20)) }

// busy keeps it busy for so long.
func (c card) busy(length time.Duration) error { return c.run("busy", uint64(length)) }

// fault writes where there is no memory: the driver ends what this program does there and reports a critical error (XID).
func (c card) fault() error { return c.run("fault", 16) }

func (c card) run(kernel string, argument uint64) error {
	text, name := C.CString(code), C.CString(kernel)
	defer C.free(unsafe.Pointer(text))
	defer C.free(unsafe.Pointer(name))
	return c.failed(C.card_run(C.int(c), text, name, C.uint64_t(argument)))
}

func (c card) failed(code C.int) error {
	switch code {
	case 0:
		return nil
	case C.OUT_OF_MEMORY:
		return errRoom
	case C.NO_DRIVER:
		return errDriver
	}
	return fmt.Errorf("CUDA error %d on GPU %d", int(code), uint32(c))
}
