# Every folder ("room") under src/ becomes one static library, built from the .cpp files directly inside it.
# Warnings are errors there; the compiler must not contract a*b+c into an FMA unless the source says so, because
# the engine's results are specified to the bit.

add_library(spark_flags INTERFACE)
target_compile_features(spark_flags INTERFACE cxx_std_20)
target_compile_options(spark_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)
if(SPARK_SANITIZE)
  target_compile_options(spark_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${SPARK_SANITIZE} -fno-omit-frame-pointer>
                                               $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize-recover=all>)
  target_link_options(spark_flags INTERFACE -fsanitize=${SPARK_SANITIZE})
endif()
if(SPARK_FUZZ)
  target_compile_options(spark_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=fuzzer-no-link>)
endif()

add_library(spark_warnings INTERFACE)
target_compile_options(spark_warnings INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -Wconversion>
  # GCC judges; Clang builds the fuzz targets only, and each of its versions warns of other things.
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>>:-Werror>
  # Clang's -Wconversion includes this one, GCC's does not.
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:Clang>>:-Wno-sign-conversion>
  # GCC 12 reports impossible overlaps inside std::string (GCC bug 105651).
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>>:-Wno-restrict>)

# spark_room(NAME FOLDER [DEPS targets...] [PRIVATE targets...])
function(spark_room name folder)
  cmake_parse_arguments(ROOM "" "" "DEPS;PRIVATE" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${folder}/*.cpp)
  if(sources)
    add_library(${name} STATIC ${sources})
    target_include_directories(${name} PUBLIC ${CMAKE_SOURCE_DIR}/src)
    target_link_libraries(${name} PUBLIC spark_flags Threads::Threads ${ROOM_DEPS}
                                  PRIVATE $<BUILD_INTERFACE:spark_warnings> ${ROOM_PRIVATE})
  else()
    add_library(${name} INTERFACE)
    target_include_directories(${name} INTERFACE ${CMAKE_SOURCE_DIR}/src)
    target_link_libraries(${name} INTERFACE spark_flags Threads::Threads ${ROOM_DEPS} ${ROOM_PRIVATE})
  endif()
endfunction()

# spark_test(NAME FOLDER LIBS...): one GoogleTest program from tests/FOLDER/*.cpp, registered with CTest as NAME.
function(spark_test name folder)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/${folder}/*.cpp)
  if(NOT sources)
    return()
  endif()
  add_executable(${name} ${sources})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/tests)
  target_compile_options(${name} PRIVATE -O1 -Wall -Wextra -Wshadow)
  target_compile_definitions(${name} PRIVATE SPARK_TEST_DATA="${CMAKE_SOURCE_DIR}/tests/data"
                                             SPARK_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  target_link_libraries(${name} PRIVATE spark_flags GTest::gtest_main ${ARGN})
  add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES TIMEOUT 600)
endfunction()

# spark_fuzz(NAME FILE LIBS...): one libFuzzer program.
function(spark_fuzz name file)
  add_executable(${name} ${file})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/src)
  target_compile_options(${name} PRIVATE -fsanitize=fuzzer)
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  target_link_libraries(${name} PRIVATE spark_flags ${ARGN})
endfunction()
