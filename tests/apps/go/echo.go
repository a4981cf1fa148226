// What the scenarios go-* run: an echo server, a client that compares each byte, and programs that do much else beside that.
// It needs libc (import "C"), and only what Go 1.19 has.
package main

// #include <unistd.h>
import "C"

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"runtime/pprof"
	"strconv"
	"sync"
	"syscall"
	"time"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func number(at int) int {
	n, err := strconv.Atoi(os.Args[at])
	check(err)
	return n
}

func main() {
	switch os.Args[1] {
	case "server":
		listener, err := net.Listen("tcp", "127.0.0.1:"+os.Args[2])
		check(err)
		serve(listener, -1, 1<<16)
	case "client":
		fmt.Println(clients(os.Args[2], number(3), number(4)), "echoes")
	case "http":
		answer := bytes.Repeat([]byte("x"), 64)
		http.HandleFunc("/64", func(w http.ResponseWriter, _ *http.Request) { w.Write(answer) })
		http.Handle("/", http.FileServer(http.Dir(os.Args[3])))
		check(http.ListenAndServe("127.0.0.1:"+os.Args[2], nil))
	case "busy":
		busy(os.Args[2], number(3), number(4))
	case "hand-over":
		handOver(os.Args[2], os.Args[3])
	case "heir":
		listener, err := net.FileListener(os.NewFile(3, "listener"))
		check(err)
		serve(listener, number(2), 1<<16)
	case "crowd-server":
		defer disturb()()
		listener, err := net.Listen("tcp", "127.0.0.1:"+os.Args[2])
		check(err)
		serve(listener, number(3), crowdSize)
	case "crowd":
		defer disturb()()
		fmt.Println(crowd(os.Args[2], number(3), number(4)), "echoes")
	}
}

// Serves so many connections, or for ever, with a buffer of so many bytes each.
func serve(listener net.Listener, count, size int) {
	var all sync.WaitGroup
	for ; count != 0; count-- {
		connection, err := listener.Accept()
		check(err)
		all.Add(1)
		go func() {
			defer all.Done()
			defer connection.Close()
			buffer := make([]byte, size)
			for {
				n, err := connection.Read(buffer)
				if err == io.EOF {
					return
				}
				check(err)
				_, err = connection.Write(buffer[:n])
				check(err)
			}
		}()
	}
	all.Wait()
}

// So many connections at a time, with so many messages each, of all lengths.
func clients(port string, connections, messages int) int {
	var all sync.WaitGroup
	for i := 0; i < connections; i++ {
		all.Add(1)
		go func(i int) {
			defer all.Done()
			connection, err := net.Dial("tcp", "127.0.0.1:"+port)
			check(err)
			defer connection.Close()
			converse(connection, 0, messages, 1+i*97, i)
		}(i)
	}
	all.Wait()
	return connections * messages
}

// A server and its clients in one process, while memory is collected, a profile is made (SIGPROF) and programs are executed.
func busy(port string, connections, messages int) {
	var profile bytes.Buffer
	check(pprof.StartCPUProfile(&profile))
	listener, err := net.Listen("tcp", "127.0.0.1:"+port)
	check(err)
	done := make(chan bool)
	var beside sync.WaitGroup
	forAll := func(what func()) {
		beside.Add(1)
		go func() {
			defer beside.Done()
			for {
				select {
				case <-done:
					return
				default:
					what()
				}
			}
		}()
	}
	var kept [][]byte
	forAll(func() {
		kept = append(kept, make([]byte, 100_000))
		if len(kept) > 100 {
			kept = nil
			runtime.GC()
		}
	})
	forAll(func() {
		said, err := exec.Command("/bin/echo", "hello").Output()
		check(err)
		if string(said) != "hello\n" {
			panic("echo said something else")
		}
		time.Sleep(10 * time.Millisecond)
	})
	go serve(listener, connections, 1<<16)
	fmt.Println(clients(port, connections, messages), "echoes")
	close(done)
	beside.Wait()
	pprof.StopCPUProfile()
}

// So many messages of so many bytes, each of which has to come back as it was.
func converse(connection net.Conn, first, messages, size, step int) {
	out, in := make([]byte, size), make([]byte, size)
	for n := 0; n < messages; n++ {
		for k := range out {
			out[k] = byte(first + n + k*step)
		}
		_, err := connection.Write(out)
		check(err)
		_, err = io.ReadFull(connection, in)
		check(err)
		if !bytes.Equal(in, out) {
			panic("other bytes came back")
		}
	}
}

const crowdSize = 64

// Makes a profile (SIGPROF), collects memory, and sends SIGURG, as the runtime does to preempt, until what it returns is called.
func disturb() func() {
	var profile bytes.Buffer
	check(pprof.StartCPUProfile(&profile))
	go func() {
		var kept [][]byte
		for {
			check(syscall.Kill(os.Getpid(), syscall.SIGURG))
			kept = append(kept, make([]byte, 50_000))
			if len(kept) > 200 {
				kept = nil
				runtime.GC()
			}
			time.Sleep(200 * time.Microsecond)
		}
	}()
	return pprof.StopCPUProfile
}

// So many connections, all of them open before the first says a word; some hundred are made at a time, since a backlog has an end.
func crowd(port string, connections, messages int) int {
	var up, all sync.WaitGroup
	up.Add(connections)
	dialing := make(chan bool, 200)
	for i := 0; i < connections; i++ {
		all.Add(1)
		go func(i int) {
			defer all.Done()
			dialing <- true
			connection, err := net.Dial("tcp", "127.0.0.1:"+port)
			check(err)
			<-dialing
			defer connection.Close()
			up.Done()
			up.Wait()
			converse(connection, i, messages, crowdSize, 1)
		}(i)
	}
	all.Wait()
	return connections * messages
}

// A child inherits the listener, and serves so many connections.
func handOver(port, connections string) {
	listener, err := net.Listen("tcp", "127.0.0.1:"+port)
	check(err)
	file, err := listener.(*net.TCPListener).File()
	check(err)
	check(listener.Close())
	heir := exec.Command("/proc/self/exe", "heir", connections)
	heir.ExtraFiles = []*os.File{file}
	heir.Stderr = os.Stderr
	check(heir.Start())
	check(file.Close())
	check(heir.Wait())
}
