package dev.portolan.tests;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/**
 * Informers of fabric8 and of the official Java client side by side, for {@code make soak-clients-all}.
 *
 * <p>It speaks as the {@code soak} mode of portolan-go-client does: the line {@code report} on stdin is answered by one JSON
 * line on stdout; the end of stdin ends it.
 */
public final class Soak {
  private Soak() {}

  public static void main(String[] arguments) throws IOException {
    List<Soaked> all = new ArrayList<>();
    for (String namespace : List.of("", arguments[0])) {
      all.add(Fabric8.configMaps(namespace));
      all.add(Official.configMaps(namespace));
    }
    all.add(Fabric8.greetings());
    ObjectMapper json = new ObjectMapper();
    BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
    for (String command = commands.readLine(); command != null; command = commands.readLine()) {
      if (command.trim().equals("report")) {
        List<Map<String, Object>> reports = all.stream().map(Soaked::report).toList();
        System.out.println(json.writeValueAsString(Map.of("type", "report", "clients", reports)));
      }
    }
    System.exit(0);
  }
}
