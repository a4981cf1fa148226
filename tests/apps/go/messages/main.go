// What the scenarios go-nats and go-grpc run: a NATS server, programs that ask each other by way of it, and a gRPC server with a
// client. Static programs (CGO_ENABLED=0) of the modules in go.mod. Each answer is compared.
package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const patience = 30 * time.Second

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

// Messages of one byte to 32 KiB, each with its number in front.
func message(serial int) []byte {
	text := bytes.Repeat([]byte{byte(serial)}, 8+serial*serial%(32<<10))
	binary.LittleEndian.PutUint64(text, uint64(serial))
	return text
}

func together(count int, each func(index int)) {
	var group sync.WaitGroup
	for index := range count {
		group.Add(1)
		go func() {
			defer group.Done()
			each(index)
		}()
	}
	group.Wait()
}

func untilTerminated() {
	ends := make(chan os.Signal, 1)
	signal.Notify(ends, syscall.SIGTERM)
	<-ends
}

func natsServer(port int) {
	broker, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: port, NoSigs: true})
	check(err)
	go broker.Start()
	untilTerminated()
	broker.Shutdown()
	broker.WaitForShutdown()
}

func dial(port int) *nats.Conn {
	conn, err := nats.Connect(fmt.Sprintf("nats://127.0.0.1:%d", port), nats.Timeout(patience))
	check(err)
	return conn
}

// Two answer in turn, others ask; then one tells, and all hear it in order.
func natsClients(port, clients, messages int) {
	for range 2 {
		answering := dial(port)
		defer answering.Close()
		_, err := answering.QueueSubscribe("question", "all", func(m *nats.Msg) { check(m.Respond(m.Data)) })
		check(err)
		check(answering.Flush())
	}
	var answers, heard atomic.Int64
	together(clients, func(int) {
		conn := dial(port)
		defer conn.Close()
		for serial := range messages {
			text := message(serial)
			answer, err := conn.Request("question", text, patience)
			check(err)
			if bytes.Equal(answer.Data, text) {
				answers.Add(1)
			}
		}
	})
	var ready, done sync.WaitGroup
	for range clients {
		ready.Add(1)
		done.Add(1)
		go func() {
			defer done.Done()
			conn := dial(port)
			defer conn.Close()
			news, err := conn.SubscribeSync("news")
			check(err)
			check(conn.Flush())
			ready.Done()
			for serial := range messages {
				m, err := news.NextMsg(patience)
				check(err)
				if bytes.Equal(m.Data, message(serial)) {
					heard.Add(1)
				}
			}
		}()
	}
	ready.Wait()
	telling := dial(port)
	for serial := range messages {
		check(telling.Publish("news", message(serial)))
	}
	check(telling.Flush())
	done.Wait()
	telling.Close()
	fmt.Printf("%d answers, %d messages\n", answers.Load(), heard.Load())
}

func answerOne(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
	text := new(wrapperspb.BytesValue)
	return text, decode(text)
}

func answerEach(_ any, stream grpc.ServerStream) error {
	for {
		text := new(wrapperspb.BytesValue)
		if err := stream.RecvMsg(text); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		if err := stream.SendMsg(text); err != nil {
			return err
		}
	}
}

var eachDesc = grpc.StreamDesc{StreamName: "Each", Handler: answerEach, ServerStreams: true, ClientStreams: true}

func grpcServer(port int) {
	listening, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	check(err)
	answering := grpc.NewServer()
	answering.RegisterService(&grpc.ServiceDesc{
		ServiceName: "Echo",
		HandlerType: (*any)(nil),
		Methods:     []grpc.MethodDesc{{MethodName: "One", Handler: answerOne}},
		Streams:     []grpc.StreamDesc{eachDesc},
	}, nil)
	go func() { check(answering.Serve(listening)) }()
	untilTerminated()
	answering.GracefulStop()
}

// Calls and streams of several connections at the same time.
func grpcClients(port, clients, messages int) {
	var answers, echoes atomic.Int64
	together(clients, func(int) {
		conn, err := grpc.NewClient(fmt.Sprintf("127.0.0.1:%d", port), grpc.WithTransportCredentials(insecure.NewCredentials()))
		check(err)
		defer conn.Close()
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		together(2, func(half int) {
			if half == 0 {
				for serial := range messages {
					text, answer := message(serial), new(wrapperspb.BytesValue)
					check(conn.Invoke(ctx, "/Echo/One", wrapperspb.Bytes(text), answer))
					if bytes.Equal(answer.Value, text) {
						answers.Add(1)
					}
				}
				return
			}
			stream, err := conn.NewStream(ctx, &eachDesc, "/Echo/Each")
			check(err)
			go func() {
				for serial := range messages {
					check(stream.SendMsg(wrapperspb.Bytes(message(serial))))
				}
				check(stream.CloseSend())
			}()
			for serial := range messages {
				echo := new(wrapperspb.BytesValue)
				check(stream.RecvMsg(echo))
				if bytes.Equal(echo.Value, message(serial)) {
					echoes.Add(1)
				}
			}
			if err := stream.RecvMsg(new(wrapperspb.BytesValue)); err != io.EOF {
				panic(fmt.Sprint("no end: ", err))
			}
		})
	})
	fmt.Printf("%d answers, %d messages\n", answers.Load(), echoes.Load())
}

func main() {
	switch os.Args[1] {
	case "nats-server":
		natsServer(number(2))
	case "nats":
		natsClients(number(2), number(3), number(4))
	case "grpc-server":
		grpcServer(number(2))
	case "grpc":
		grpcClients(number(2), number(3), number(4))
	}
}
