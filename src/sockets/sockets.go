// Package sockets reads and writes connections without telling the Go scheduler about each system call.
//
// Package net tells it, in case the call waits. Then sysmon, a thread of the scheduler, wakes up every 20 µs, looks
// whether one does, and after 20 µs lets another thread continue. But the sockets of package net never wait, and a
// write over loopback takes 10 µs or more because the kernel delivers the packet. A service that often waits for Redis
// spends a tenth of its CPU time in sysmon, and as much again in the threads that sysmon starts.
package sockets
