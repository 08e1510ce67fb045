// Package sockets reads and writes connections without telling the Go scheduler about each system call.
//
// Package net tells it, in case the call waits. That wakes sysmon, a thread of the scheduler, which then looks every
// 20 µs, and later less often, for calls that wait, and lets another thread continue. But calls of package net do not
// wait for the other side, and a write over loopback takes 10 µs or more because the kernel delivers the packet. A
// service that often waits for Redis spends a tenth of its CPU time in sysmon, and more in the threads that sysmon
// starts.
//
// Sysmon also interrupts goroutines that compute for more than 10 ms. While nothing wakes it but this package, it may
// sleep until the next timer. So this package is only for connections whose answers take little CPU time.
package sockets
