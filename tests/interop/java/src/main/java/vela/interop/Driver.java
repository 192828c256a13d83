package vela.interop;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.apache.pulsar.client.admin.PulsarAdminException;

/**
 * Lets a test drive Pulsar's clients: one request per line of standard input, as JSON with an {@code id} and the name
 * {@code do} of an operation; one line of standard output for each, with the same id, when it is done. Every request
 * has a thread of its own, so that one may consume while another produces. Ends with its input.
 */
public final class Driver {
    static final ObjectMapper JSON = new ObjectMapper();

    /** What a request asks for; the result is written as JSON. */
    @FunctionalInterface
    interface Operation {
        Object perform(JsonNode request) throws Exception;
    }

    private final Map<String, Operation> operations = new HashMap<>();
    private final PrintStream replies;

    private Driver(PrintStream replies) {
        this.replies = replies;
        new Peers().offer(operations);
        new Admin().offer(operations);
        new Classic().offer(operations);
        new Partitions().offer(operations);
        new Deliveries().offer(operations);
    }

    public static void main(String[] arguments) throws IOException {
        PrintStream replies = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        // Whatever a library prints must not stand between the replies.
        System.setOut(System.err);
        Driver driver = new Driver(replies);
        ExecutorService threads = Executors.newCachedThreadPool();
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            JsonNode request = JSON.readTree(line);
            threads.execute(() -> driver.answer(request));
        }
        // Clients that are still open have threads that would keep this process alive.
        Runtime.getRuntime().halt(0);
    }

    private void answer(JsonNode request) {
        ObjectNode reply = JSON.createObjectNode();
        reply.set("id", request.get("id"));
        try {
            Operation operation = operations.get(request.get("do").asText());
            if (operation == null) {
                throw new IllegalArgumentException("no such operation: " + request.get("do"));
            }
            reply.set("result", JSON.valueToTree(operation.perform(request)));
        } catch (Throwable error) {
            Throwable cause = unwrapped(error);
            cause.printStackTrace();
            reply.put("error", cause.getClass().getSimpleName());
            reply.put("message", told(cause));
            if (cause instanceof PulsarAdminException refusal) {
                reply.put("status", refusal.getStatusCode());
            }
        }
        synchronized (replies) {
            replies.println(reply);
        }
    }

    /** An error with its causes: the V5 API wraps what the client below it says, and keeps little of it. */
    static String told(Throwable error) {
        List<String> chain = new ArrayList<>();
        for (Throwable each = unwrapped(error); each != null; each = each.getCause()) {
            chain.add(each.getClass().getSimpleName() + ": " + each.getMessage());
        }
        return String.join("; ", chain);
    }

    private static Throwable unwrapped(Throwable error) {
        boolean wrapper = error instanceof CompletionException || error instanceof ExecutionException;
        return wrapper && error.getCause() != null ? unwrapped(error.getCause()) : error;
    }
}
