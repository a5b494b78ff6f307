import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;

/** Enqueues and asks for the queues, as an HttpClient does that nobody has configured. */
public class Enqueue {
    public static void main(String[] args) throws Exception {
        HttpClient client = HttpClient.newHttpClient();
        for (int i = 0; i < 20; i++) {
            String body = "{\"queue\": \"" + args[1] + "\", \"payload\": " + i + "}";
            say(client, HttpRequest.newBuilder(URI.create(args[0] + "/enqueue"))
                .POST(HttpRequest.BodyPublishers.ofString(body)).build());
            say(client, HttpRequest.newBuilder(URI.create(args[0] + "/queues/" + args[1])).build());
        }
    }

    private static void say(HttpClient client, HttpRequest request) throws Exception {
        HttpResponse<String> response = client.send(request, HttpResponse.BodyHandlers.ofString());
        System.out.println(response.statusCode() + " " + response.version());
    }
}
