// What go-static-crowd runs: thousands of goroutines with a connection each, all open at once, while memory is collected, a profile is made
// (SIGPROF) and SIGURG comes as from the runtime's preemption.
package main

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
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
	var profile bytes.Buffer
	check(pprof.StartCPUProfile(&profile))
	defer pprof.StopCPUProfile()
	go disturb()
	address, connections := "127.0.0.1:"+os.Args[2], number(3)
	switch os.Args[1] {
	case "server":
		serve(address, connections)
	case "client":
		fmt.Println(ask(address, connections, number(4)), "echoes")
	}
}

func disturb() {
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
}

const size = 64

func serve(address string, connections int) {
	listener, err := net.Listen("tcp", address)
	check(err)
	var all sync.WaitGroup
	for i := 0; i < connections; i++ {
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

// All are connected before the first says a word, some hundred at a time: a backlog has an end.
func ask(address string, connections, messages int) int {
	var up, all sync.WaitGroup
	up.Add(connections)
	dialing := make(chan bool, 200)
	for i := 0; i < connections; i++ {
		all.Add(1)
		go func() {
			defer all.Done()
			dialing <- true
			connection, err := net.Dial("tcp", address)
			check(err)
			<-dialing
			defer connection.Close()
			up.Done()
			up.Wait()
			out, in := make([]byte, size), make([]byte, size)
			for n := 0; n < messages; n++ {
				for k := range out {
					out[k] = byte(i + n + k)
				}
				_, err := connection.Write(out)
				check(err)
				_, err = io.ReadFull(connection, in)
				check(err)
				if !bytes.Equal(in, out) {
					panic("other bytes came back")
				}
			}
		}()
	}
	all.Wait()
	return connections * messages
}
