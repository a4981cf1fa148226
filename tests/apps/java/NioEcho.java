import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;

/** An echo server and a client of such, over one selector each. */
public class NioEcho {
    static final int[] SIZES = {1, 10, 100, 1000, 5000, 20_000, 70_000, 300_000};

    public static void main(String[] args) throws Exception {
        int port = Integer.parseInt(args[1]);
        if (args[0].equals("server")) {
            serve(port);
        } else {
            ask(port, Integer.parseInt(args[2]), Integer.parseInt(args[3]));
        }
    }

    static void serve(int port) throws Exception {
        Selector selector = Selector.open();
        ServerSocketChannel listener = ServerSocketChannel.open();
        listener.bind(new InetSocketAddress("127.0.0.1", port), 512);
        listener.configureBlocking(false);
        listener.register(selector, SelectionKey.OP_ACCEPT);
        while (true) {
            selector.select();
            for (SelectionKey key : selector.selectedKeys()) {
                if (key.isAcceptable()) {
                    SocketChannel connection = listener.accept();
                    if (connection != null) {
                        connection.configureBlocking(false);
                        ByteBuffer buffer = ByteBuffer.allocateDirect(65536);
                        connection.register(selector, SelectionKey.OP_READ, buffer);
                    }
                } else {
                    echo(key);
                }
            }
            selector.selectedKeys().clear();
        }
    }

    /** The buffer is filled from the socket, then emptied into it, in turn. */
    static void echo(SelectionKey key) throws Exception {
        SocketChannel connection = (SocketChannel) key.channel();
        ByteBuffer buffer = (ByteBuffer) key.attachment();
        if (key.isReadable()) {
            if (connection.read(buffer) < 0) {
                connection.close();
                return;
            }
            buffer.flip();
        }
        connection.write(buffer);
        if (buffer.hasRemaining()) {
            key.interestOps(SelectionKey.OP_WRITE);
        } else {
            buffer.clear();
            key.interestOps(SelectionKey.OP_READ);
        }
    }

    static class Talk {
        final int number;
        int round;
        byte[] data;
        ByteBuffer out;
        ByteBuffer in;

        Talk(int number) {
            this.number = number;
            next();
        }

        void next() {
            data = new byte[SIZES[(number + round) % SIZES.length]];
            new java.util.Random(number * 1000L + round).nextBytes(data);
            out = ByteBuffer.wrap(data);
            in = ByteBuffer.allocate(data.length);
            round += 1;
        }
    }

    static void ask(int port, int connections, int rounds) throws Exception {
        Selector selector = Selector.open();
        for (int i = 0; i < connections; i++) {
            SocketChannel connection = SocketChannel.open();
            connection.configureBlocking(false);
            connection.connect(new InetSocketAddress("127.0.0.1", port));
            connection.register(selector, SelectionKey.OP_CONNECT, new Talk(i));
        }
        int open = connections;
        long start = System.nanoTime();
        while (open > 0) {
            selector.select();
            for (SelectionKey key : selector.selectedKeys()) {
                open -= step(key, rounds, start) ? 0 : 1;
            }
            selector.selectedKeys().clear();
        }
        System.out.println(connections * rounds + " echoes");
    }

    /** False when the connection has done its rounds. It stays open for long enough to be seen. */
    static boolean step(SelectionKey key, int rounds, long start) throws Exception {
        SocketChannel connection = (SocketChannel) key.channel();
        Talk talk = (Talk) key.attachment();
        if (key.isConnectable()) {
            connection.finishConnect();
        }
        if (!key.isConnectable() && key.isReadable()) {
            if (connection.read(talk.in) < 0) {
                throw new IllegalStateException("the echo ended early");
            }
            if (!talk.in.hasRemaining()) {
                if (!java.util.Arrays.equals(talk.in.array(), talk.data)) {
                    throw new IllegalStateException("echo differs");
                }
                if (talk.round >= rounds && System.nanoTime() - start > 300_000_000L) {
                    connection.close();
                    return false;
                }
                talk.next();
            }
        }
        connection.write(talk.out);
        key.interestOps(talk.out.hasRemaining() ? SelectionKey.OP_READ | SelectionKey.OP_WRITE : SelectionKey.OP_READ);
        return true;
    }
}
