# The CUDA backend: src/engine/kernels/cuda. Built when nvcc is present (SPARK_CUDA=AUTO) or demanded (ON), for the two
# devices that its kernels are written for. Products and sums must not be contracted unless the source says so, as on
# the CPU: -fmad=false, and fmaf where a fused operation is meant.

get_filename_component(SPARK_CUDA_ROOT ${CMAKE_CURRENT_LIST_DIR}/.. ABSOLUTE)
set(SPARK_HAS_CUDA OFF)
if(NOT SPARK_CUDA STREQUAL "OFF")
  include(CheckLanguage)
  if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    find_program(SPARK_NVCC nvcc PATHS /usr/local/cuda/bin)
    if(SPARK_NVCC)
      set(CMAKE_CUDA_COMPILER ${SPARK_NVCC})
    endif()
  endif()
  set(CMAKE_CUDA_ARCHITECTURES 90a-real 121a-real CACHE STRING "CUDA targets")
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    set(SPARK_HAS_CUDA ON)
  else()
    check_language(CUDA)
    if(CMAKE_CUDA_COMPILER)
      enable_language(CUDA)
      set(SPARK_HAS_CUDA ON)
    elseif(SPARK_CUDA STREQUAL "ON")
      message(FATAL_ERROR "SPARK_CUDA=ON, but there is no nvcc: install the CUDA toolkit 13.0 or later")
    endif()
  endif()
endif()

# CMake 3.25 does not know that nvcc takes C++20 since version 12.
if(SPARK_HAS_CUDA AND NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()

function(spark_cuda_room)
  find_package(CUDAToolkit REQUIRED)
  file(GLOB sources CONFIGURE_DEPENDS ${SPARK_CUDA_ROOT}/src/engine/kernels/cuda/*.cu
                                      ${SPARK_CUDA_ROOT}/src/engine/kernels/cuda/*.cpp)
  # Kernels of one device only: compiled for that device only.
  foreach(device sm90 sm121)
    file(GLOB device_sources CONFIGURE_DEPENDS ${SPARK_CUDA_ROOT}/src/engine/kernels/cuda/${device}/*.cu)
    add_library(spark_kernels_cuda_${device} OBJECT ${device_sources})
    list(APPEND sources $<TARGET_OBJECTS:spark_kernels_cuda_${device}>)
  endforeach()
  set_target_properties(spark_kernels_cuda_sm90 PROPERTIES CUDA_ARCHITECTURES 90a-real)
  set_target_properties(spark_kernels_cuda_sm121 PROPERTIES CUDA_ARCHITECTURES 121a-real)
  add_library(spark_kernels_cuda STATIC ${sources})
  target_compile_definitions(spark_kernels_cuda PUBLIC SPARK_HAS_CUDA_BACKEND)
  foreach(room spark_kernels_cuda spark_kernels_cuda_sm90 spark_kernels_cuda_sm121)
    set_target_properties(${room} PROPERTIES UNITY_BUILD OFF CUDA_STANDARD 20 CUDA_STANDARD_REQUIRED ON)
    target_include_directories(${room} PUBLIC ${SPARK_CUDA_ROOT}/src)
    target_compile_options(${room} PRIVATE
      $<$<COMPILE_LANGUAGE:CUDA>:-fmad=false --expt-relaxed-constexpr -Xcompiler=-Wall>)
    target_link_libraries(${room} PUBLIC spark_flags Threads::Threads spark_kernels spark_kernels_cuda_plan
                                  PRIVATE $<BUILD_INTERFACE:spark_warnings> CUDA::cudart_static)
  endforeach()
endfunction()
